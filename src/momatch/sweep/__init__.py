"""Experiments: grids of settings x seeds, carried out in parallel, recorded and put into tables beside the paper's."""
