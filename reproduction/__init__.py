"""The reproduction of the paper: its grids and published numbers, the rules that judge its claims, the results page, figures.

Not part of the installed package.
"""
