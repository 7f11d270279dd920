"""Who looks on while runs go on, beside the display of the command line."""
