#!/usr/bin/env bash
# Says which C and C++ files clang-format would change. A report: it fails only when it cannot look.
set -euo pipefail
cd "${NUMACRE_SOURCE_DIR:?the top of the tree}"
formatter=
for candidate in clang-format clang-format-22 clang-format-19 clang-format-16 clang-format-14; do
    command -v "$candidate" >/dev/null 2>&1 && formatter=$candidate && break
done
if [ -z "$formatter" ]; then
    echo "skipped: no clang-format here"
    exit 77
fi
mapfile -t files < <(find shm client daemon tests \( -name '*.hpp' -o -name '*.cpp' -o -name '*.h' -o -name '*.c' \) -print | sort)
if [ ${#files[@]} -eq 0 ]; then
    echo "no sources found under $PWD"
    exit 1
fi
different=0
for file in "${files[@]}"; do
    if ! "$formatter" --dry-run -Werror "$file" >/dev/null 2>&1; then
        echo "would change: $file"
        different=$((different + 1))
    fi
done
echo "clang-format: $different of ${#files[@]} files would change"
