"""LDA by gensim or scikit-learn, in a process that has neither tacit nor JAX; see `topics.py`.

Called as `python topics_peer.py PEER FOLDER TOPICS BATCH SEEDS`: reads FOLDER/train.npz, leaves the
concentration of the topics of every seed in FOLDER/SEED.npy, and prints one JSON object with the
version and the least CPU seconds of a pass. Making gensim's lists of pairs is not counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

TOLERANCE, STEPS, OFFSET, DECAY = 1e-3, 30, 1.0, 0.7


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import numpy as np
    from scipy import sparse

    peer, folder, *numbers = sys.argv[1:]
    topics, batch, seeds = map(int, numbers)
    counts = sparse.csr_matrix(sparse.load_npz(Path(folder) / "train.npz"))
    version, run = {"gensim": _gensim, "scikit-learn": _sklearn}[peer](counts, topics, batch)
    seconds = []
    for seed in range(seeds):
        started = time.process_time()
        found = run(seed)
        seconds.append(time.process_time() - started)
        np.save(Path(folder) / f"{seed}.npy", np.asarray(found(), np.float64))
    print(json.dumps({"version": version, "cpu_s": min(seconds)}))


def _gensim(counts: Any, topics: int, batch: int) -> Any:
    import gensim
    import numpy as np
    from gensim.models import LdaModel

    ends = counts.indptr
    corpus = [
        list(zip(counts.indices[a:b].tolist(), counts.data[a:b].tolist(), strict=True))
        for a, b in pairwise(ends)
    ]
    names = {word: str(word) for word in range(counts.shape[1])}

    def run(seed: int) -> Any:
        model = LdaModel(
            corpus, num_topics=topics, id2word=names, chunksize=batch, passes=1, update_every=1,
            iterations=STEPS, gamma_threshold=TOLERANCE, offset=OFFSET, decay=DECAY,
            alpha=1.0 / topics, eta=1.0 / topics, eval_every=None, random_state=seed,
            dtype=np.float32,
        )  # fmt: skip
        return model.state.get_lambda

    return gensim.__version__, run


def _sklearn(counts: Any, topics: int, batch: int) -> Any:
    import numpy as np
    import sklearn
    from sklearn.decomposition import LatentDirichletAllocation

    counts = counts.astype(np.float32)

    def run(seed: int) -> Any:
        model = LatentDirichletAllocation(
            topics, learning_method="online", batch_size=batch, max_iter=1,
            learning_offset=OFFSET, learning_decay=DECAY, total_samples=counts.shape[0],
            random_state=seed, max_doc_update_iter=STEPS, mean_change_tol=TOLERANCE,
            doc_topic_prior=1.0 / topics, topic_word_prior=1.0 / topics,
        ).fit(counts)  # fmt: skip
        return lambda: model.components_

    return sklearn.__version__, run


if __name__ == "__main__":
    main()
