"""clang-tidy over the product's sources (.clang-tidy says which checks), and over a file with planted faults, which
have to be found. Usage: clang_tidy.py SOURCE_DIR BINARY_DIR [FILE...]; without FILE, every source that the build of
BINARY_DIR compiles from shm/, os/, client/ and daemon/."""

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
CLANG_TIDY = "clang-tidy-22"
FOLDERS = ("shm", "os", "client", "daemon")
PLANTED = """#include <cstdint>
#include <string>
#include <utility>
std::uint64_t widened(int count) {
    return count * 4096;
}
static std::string moved_from(std::string text) {
    std::string other = std::move(text);
    return other + text;
}
std::string used(const std::string &text) {
    return moved_from(text);
}
"""
PLANTED_CHECKS = ("bugprone-implicit-widening-of-multiplication-result", "bugprone-use-after-move",
                  "misc-use-internal-linkage", "misc-const-correctness")


def findings(source, file, *arguments):
    """The exit status and the text of clang-tidy for one file."""
    done = subprocess.run(
        # g++'s options are not all known to clang; what the standard library deprecates in its own headers is not ours.
        [CLANG_TIDY, "--quiet", f"--config-file={source / '.clang-tidy'}", "--extra-arg=-Wno-unknown-warning-option",
         "--extra-arg=-Wno-ignored-gch",
         "--extra-arg=-Wno-deprecated-declarations", str(file), *arguments],
        capture_output=True, text=True, check=False)
    return done.returncode, done.stdout if done.stdout else done.stderr


def compiled_sources(source, binary):
    commands = json.loads((binary / "compile_commands.json").read_text())
    files = {pathlib.Path(command["file"]) for command in commands}
    return sorted(file for file in files
                  if file.is_relative_to(source) and file.relative_to(source).parts[0] in FOLDERS and
                  not file.is_relative_to(binary))


def planted_faults_that_pass(source):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "planted.cpp")
        file.write_text(PLANTED)
        _, text = findings(source, file, "--", "-std=c++20")
    return [check for check in PLANTED_CHECKS if check not in text]


def main():
    source, binary = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    if shutil.which(CLANG_TIDY) is None:
        print(f"SKIP: {CLANG_TIDY} is not installed: the sources are not checked")
        return SKIPPED
    missed = planted_faults_that_pass(source)
    for check in missed:
        print(f"the planted fault of {check} is not found")
    files = [pathlib.Path(file).resolve() for file in sys.argv[3:]] or compiled_sources(source, binary)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, (code, text) in zip(files, pool.map(lambda file: findings(source, file, "-p", str(binary)), files)):
            if code != 0:
                failed += 1
                print(f"{file.relative_to(source)}:\n{text}", flush=True)
    print(f"{len(files)} files, {failed} with findings")
    return 1 if missed or failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
