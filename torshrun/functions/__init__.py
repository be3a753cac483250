"""Runs functions of a program or a notebook in workers: implements torshrun.launch()."""
