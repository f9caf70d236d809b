"""A check for tests that are plain functions."""


def expect(condition, what):
    if not condition:
        raise AssertionError(what)
