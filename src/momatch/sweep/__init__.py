"""Grids of settings x seeds: trained in parallel, recorded, and put into tables."""
