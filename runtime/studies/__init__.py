"""Published claims, each re-measured by one file; see :mod:`..study`. A file here is a study, by its own name."""
