"""The one place where the version stands: read by the build and by ``momatch --version``."""

__version__ = "0.1.0"
