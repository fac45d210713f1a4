"""`python -m nnstretch`, as in `torchrun --nproc-per-node 2 -m nnstretch train …`."""

import sys

from nnstretch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
