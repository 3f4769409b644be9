"""`python -m mainstay.demo`."""

import sys

from mainstay.demo import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
