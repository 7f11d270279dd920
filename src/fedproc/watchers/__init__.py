"""Those who watch runs: the console, a notebook's line, and trackers.

progress.py     the line of text on where runs are, and the time that is left
console.py      bars on a terminal, elsewhere a line now and then
line.py         one line in a notebook, rewritten
tracker.py      what trackers have in common; tensorboard.py, mlflow.py and wandb.py are some
"""
