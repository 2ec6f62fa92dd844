"""The tests are a package, so that `from tests import problems` cannot find another distribution's `tests`."""
