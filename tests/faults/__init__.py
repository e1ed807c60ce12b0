"""The fault campaign: thousands of damaged inputs, kills, full disks and rivals (docs/reliability.md).

    python -m tests.faults --seed 0 --minutes 20

A kind of fault is a function of a world (small real models, corpora and runs), a random generator and a sandbox.
It damages something, runs commands as a user does, and raises a `Fault` if a guarantee is broken.
"""
