"""One BLAS thread: also in libraries that were loaded after the first use."""

import subprocess
import sys

CODE = """
from threadpoolctl import threadpool_info
from tacit.support.blas import one_blas_thread

def threads():
    return {one["filepath"]: one["num_threads"] for one in threadpool_info()
            if one["user_api"] == "blas"}

import numpy
with one_blas_thread():
    assert set(threads().values()) == {1}
import scipy.linalg
both = threads()
assert len(both) >= 2 and min(both.values()) >= 2, both
with one_blas_thread():
    assert set(threads().values()) == {1}, threads()
assert threads() == both, "as before"
"""


def test_libraries_that_are_loaded_later_are_limited_too():
    environment = {"OPENBLAS_NUM_THREADS": "2", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
