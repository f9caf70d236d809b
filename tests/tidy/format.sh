#!/usr/bin/env bash
# Fails if clang-format 22 would change a C or C++ file, or a line of one is longer than 120 characters. Another version of
# clang-format formats otherwise: without this one nothing is checked.
set -euo pipefail
cd "${NUMACRE_SOURCE_DIR:?the top of the tree}"
if ! command -v clang-format-22 >/dev/null 2>&1; then
    echo "SKIP: no clang-format-22 here"
    exit 77
fi
mapfile -t files < <(find shm os client daemon tests \( -name '*.hpp' -o -name '*.cpp' -o -name '*.h' -o -name '*.c' \) -print | sort)
if [ ${#files[@]} -eq 0 ]; then
    echo "no sources found under $PWD"
    exit 1
fi
status=0
for file in "${files[@]}"; do
    if ! clang-format-22 --dry-run -Werror "$file" >/dev/null 2>&1; then
        echo "$file: run clang-format-22 -i $file"
        status=1
    fi
done
awk 'length > 120 { print FILENAME ":" FNR ": " length " characters, at most 120"; found = 1 } END { exit found }' "${files[@]}" || status=1
[ "$status" -ne 0 ] || echo "clang-format: ${#files[@]} files are as it would have them"
exit "$status"
