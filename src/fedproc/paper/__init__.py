"""The paper's tables and figures: what each is made of, what was published, and how ours is read off runs."""
