"""A search for a method's best options, on validation samples alone.

space.py       what is searched: options and their values, read from a TOML file
proposals.py   which points are tried: a grid, balanced random draws, or Optuna's TPE
own_models.py  which rows have models of clients' own
plan.py        rows, trials and rungs, made into experiments; what a folder was begun with
cautions.py    what is said of a command before it is run
search.py      runs the trials, promotes the best, and goes on where it was killed
ranking.py     trials in order, and each row's winner
importance.py  which option mattered, and its picture
outcome.py     tables, ranking.json and winners.toml
"""
