"""The tests of `lib`, room by room."""

import os

# NumPy reads this when it loads. With a thread per core, small matrices take several times the
# work, and each worker has a core to itself.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
