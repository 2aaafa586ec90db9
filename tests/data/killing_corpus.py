"""Writes a corpus in processes that are killed, each continuing where the one before stopped:

python killing_corpus.py <empty folder>
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from lmzoo.data.corpora import TokenCorpus, write_corpus
from lmzoo.text import WordPieceTokenizer

WORDS = [f"w{i}" for i in range(53)]
TOKENIZER = WordPieceTokenizer.of_words(WORDS, 59)
DOCUMENTS = [[" ".join(WORDS[i % 47 : i % 53]), f"w{i % 5} w{i % 7}"] for i in range(2000)]  # takes seconds to write


def begin(folder, pipe=None):
    """A process that writes the corpus, and a byte to the pipe for each shard."""
    child = os.fork()
    if child:
        return child
    replace = Path.replace

    def watched(path, target):
        replace(path, target)
        if pipe is not None and "shard" in path.name:
            os.write(pipe, b".")

    Path.replace = watched
    try:
        write_corpus(DOCUMENTS, TOKENIZER, folder, shard_tokens=20, verbose=False)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def end(child):
    assert os.waitpid(child, 0)[1] == 0


def files(folder):
    """The files, without leftovers of a process that was killed."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def main():
    work, draw, written = Path(sys.argv[1]), random.Random(5), []
    end(begin(work / "whole"))
    for _ in range(9):
        reader, writer = os.pipe()
        child = begin(work / "killed", writer)
        os.close(writer)
        os.read(reader, 1)  # it is under way
        time.sleep(draw.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, "killed too late"
        os.close(reader)
        written.append(len(list((work / "killed").glob("shard-*.bin"))))
    end(begin(work / "killed"))
    assert files(work / "killed") == files(work / "whole")
    TokenCorpus(work / "killed").verify()
    assert written == sorted(written), "each process went on"
    print(*written, len(list((work / "whole").glob("shard-*.bin"))))


if __name__ == "__main__":
    main()
