"""The daemon's parts that say which lock guards what (base/thread_safety.hpp), compiled by clang with -Wthread-safety;
and the same with a lock taken away, which has to be found. Usage: thread_safety.py SOURCE_DIR BINARY_DIR"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
CLANG = "clang++-22"


def errors_of(file, source, binary):
    command = [CLANG, "-std=c++20", "-D_GNU_SOURCE", "-fsyntax-only", "-Werror=thread-safety",
               "-Werror=thread-safety-reference",
               *(f"-I{source / folder}" for folder in ("daemon/src", "os/include", "shm/include")),
               f"-I{binary / 'daemon/generated'}",
               str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def main():
    source, binary = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if shutil.which(CLANG) is None:
        print(f"SKIP: {CLANG} is not installed: locks are not checked")
        return SKIPPED
    files = sorted((source / "daemon/src/pool").glob("*.cpp"))
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, (code, text) in zip(files, pool.map(lambda file: errors_of(file, source, binary), files)):
            if code != 0:
                failed += 1
                print(f"{file}:\n{text}")
    # A check that finds nothing would say the same of everything.
    for name, lock in (("client_table.cpp", r"const MutexLock lock\(mutex_\);"),
                       ("managed_pool.cpp", r"const RecordsLock records\(\*this\);")):
        with tempfile.TemporaryDirectory() as folder:
            broken = pathlib.Path(folder, name)
            broken.write_text(re.sub(lock, "", (source / "daemon/src/pool" / name).read_text()))
            code, text = errors_of(broken, source, binary)
            if code == 0 or "requires holding mutex" not in text:
                failed += 1
                print(f"{name} without its locks is not found to be wrong: {text}")
    print(f"{len(files)} files, {failed} failed")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
