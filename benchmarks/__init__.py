"""What a call costs, measured side by side.

    make bench              everything, in less than ten minutes
    make bench PUBLISH=1    the same, and its figures go into results.json and the docs
    make bench QUICK=1      whether it runs, and whether the counts are as claimed; no times
    make bench-gate         instructions for one call, where valgrind is present

A contestant is a small module that says how one tool is called through one library. Each runs in a
process of its own, in the environment it needs, and does a turn when it is told to; the driver lets
them take turns in one run, so that whatever else the machine does hits all of them alike. The
server is a stub in a third process, on a core of its own where there are two.
"""
