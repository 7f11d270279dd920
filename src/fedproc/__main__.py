"""`python -m fedproc`."""

from fedproc.cli import main

raise SystemExit(main())
