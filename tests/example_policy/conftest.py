"""The example's test runs where the example is installed (``tests/test_testing.py``), not among ours."""

collect_ignore = ["test_force_push.py"]
