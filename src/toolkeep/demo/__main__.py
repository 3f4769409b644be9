"""`python -m toolkeep.demo`."""

import sys

from toolkeep.demo import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
