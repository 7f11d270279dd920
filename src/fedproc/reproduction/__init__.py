"""The tables and figures of the paper, made out of runs."""
