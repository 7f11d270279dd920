"""The paper's tables and figures: the runs that each needs, and what was published."""
