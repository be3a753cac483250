"""Functions of a program or a notebook in workers: what torshrun.launch() does."""
