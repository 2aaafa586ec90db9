"""Work on many files: in this process, or in worker processes that Ray starts on this machine or on a cluster."""

from lmzoo.workers.jobs import run_jobs

__all__ = ["run_jobs"]
