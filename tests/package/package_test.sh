#!/usr/bin/env bash
# Installs the build into a scratch prefix and uses it as a stranger would.
# usage: package_test.sh PART     PART: consumer | library | abi | header | service
#        package_test.sh abi --renew     after an intended change of the ABI: writes libnumacre.abi anew
set -euo pipefail
part=${1:?consumer, library, abi, header or service}
renew=${2:-}
source_dir=${NUMACRE_SOURCE_DIR:?the top of the tree}
build_dir=${NUMACRE_BUILD_DIR:?the build folder}
here=$source_dir/tests/package

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix

check() { # check WHAT COMMAND...
    local what=$1
    shift
    if ! "$@" >"$scratch/log" 2>&1; then
        printf 'FAILED: %s\n        %s\n' "$what" "$*"
        cat "$scratch/log"
        exit 1
    fi
    printf 'ok: %s\n' "$what"
}
die() {
    printf 'FAILED: %s\n' "$*"
    exit 1
}

check "cmake --install to a scratch prefix" cmake --install "$build_dir" --prefix "$prefix"
pkgconfig=$(find "$prefix" -name numacre.pc -printf '%h')
[ -n "$pkgconfig" ] || die "numacre.pc is not installed"
libdir=$(dirname "$pkgconfig")
export PKG_CONFIG_PATH=$pkgconfig

# Words that pkg-config prints are meant to be split.
flags() { pkg-config "$@" numacre; }

expect_run() { # expect_run WHAT PROGRAM
    check "$1 runs" env LD_LIBRARY_PATH="$libdir" "$2"
    grep -qx "numacre $(pkg-config --modversion numacre)" "$scratch/log" ||
        die "$1 printed '$(cat "$scratch/log")', not the version that pkg-config knows"
}

consumer() {
    local language link
    for language in c cpp; do
        check "find_package(numacre), $language: configure" cmake -S "$here/consumer/$language" -B "$scratch/$language" -G Ninja \
            -DCMAKE_PREFIX_PATH="$prefix"
        check "find_package(numacre), $language: build" cmake --build "$scratch/$language"
        for link in shared static; do
            expect_run "$language, $link, by find_package" "$scratch/$language/$link"
        done
        readelf -dW "$scratch/$language/static" | grep -q 'NEEDED.*libnumacre' && die "$language: the static program needs libnumacre.so"
    done
    readelf -dW "$scratch/c/static" | grep -q 'NEEDED.*stdc++' && die "a static C program needs libstdc++"

    local cflags libs static_libs
    read -ra cflags <<<"$(flags --cflags)"
    read -ra libs <<<"$(flags --libs)"
    read -ra static_libs <<<"$(flags --static --libs)"
    check "pkg-config, C, shared" cc -std=c11 -Wall -Wextra -Werror "${cflags[@]}" "$here/consumer/c/main.c" "${libs[@]}" -o "$scratch/pc_c"
    expect_run "C by pkg-config" "$scratch/pc_c"
    check "pkg-config, C++, shared" c++ -std=c++20 -Wall -Wextra -Werror "${cflags[@]}" "$here/consumer/cpp/main.cpp" "${libs[@]}" -o "$scratch/pc_cpp"
    expect_run "C++ by pkg-config" "$scratch/pc_cpp"
    check "pkg-config --static, C, by plain cc -static" cc -static "${cflags[@]}" "$here/consumer/c/main.c" "${static_libs[@]}" -o "$scratch/pc_static"
    expect_run "static C by pkg-config" "$scratch/pc_static"

    # The package must not know where it was built or installed: moved as a whole, it still works.
    mv "$prefix" "$scratch/moved"
    export PKG_CONFIG_PATH=${pkgconfig/#"$prefix"/"$scratch/moved"}
    libdir=${libdir/#"$prefix"/"$scratch/moved"}
    read -ra cflags <<<"$(flags --cflags)"
    read -ra libs <<<"$(flags --libs)"
    check "pkg-config after a move" cc "${cflags[@]}" "$here/consumer/c/main.c" "${libs[@]}" -o "$scratch/moved_c"
    expect_run "C by the moved pkg-config" "$scratch/moved_c"
    check "find_package after a move" cmake -S "$here/consumer/c" -B "$scratch/moved_cmake" -G Ninja -DCMAKE_PREFIX_PATH="$scratch/moved"
}

library() {
    local shared=$libdir/libnumacre.so.0 name versions
    [ -e "$shared" ] || die "no $shared"
    soname=$(readelf -dW "$shared" | sed -n 's/.*Library soname: \[\(.*\)\]/\1/p')
    [ "$soname" = libnumacre.so.0 ] || die "soname is '$soname', not libnumacre.so.0"
    echo "ok: soname $soname"

    # Everything behind the library is a promise to every program that links it.
    for needed in $(readelf -dW "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        case $needed in
            libc.so.6 | libpthread.so.0 | ld-linux-*.so.*) echo "ok: needs $needed" ;;
            *) die "libnumacre.so.0 needs $needed; only libc and its threads may stand behind it" ;;
        esac
    done

    # Defined dynamic symbols, as name@@version; the version itself is listed as an absolute symbol.
    nm -D --defined-only --with-symbol-versions "$shared" | awk '$2 != "A" { print $3 }' >"$scratch/symbols"
    [ -s "$scratch/symbols" ] || die "libnumacre.so.0 exports nothing"
    while read -r name; do
        case $name in
            numacre_*@@NUMACRE_0) ;;
            *) die "exported symbol '$name' is not numacre_*@@NUMACRE_0" ;;
        esac
    done <"$scratch/symbols"
    echo "ok: $(wc -l <"$scratch/symbols") exported symbols, all numacre_*@@NUMACRE_0"

    # What the headers declare and what the library exports are the same list: functions, and one variable.
    sed -n 's/^NUMACRE_API .*[ *]\(numacre_[a-z_]*\)(.*/\1/p; s/^NUMACRE_API extern .*[ *]\(numacre_[a-z0-9_]*\)\( .*\)\{0,1\}$/\1/p' \
        "$prefix/include/numacre/numacre.h" "$prefix/include/numacre/inline.h" | sort >"$scratch/declared"
    sed 's/@@.*//' "$scratch/symbols" | sort >"$scratch/exported"
    diff "$scratch/declared" "$scratch/exported" || die "declared (<) and exported (>) names differ"
    echo "ok: exported is what the headers declare"

    # An executable stack or a text relocation would forbid the library in hardened processes.
    versions=$(readelf -dW "$shared")
    if grep -q TEXTREL <<<"$versions"; then die "libnumacre.so.0 has text relocations"; fi
    readelf -lW "$shared" | grep GNU_STACK | grep -q RWE && die "libnumacre.so.0 wants an executable stack"
    # It may call malloc(), and a failing call in a signal handler may have interrupted malloc().
    nm -D --undefined-only "$shared" | grep -q '__tls_get_addr' && die "libnumacre.so.0 has a thread-local variable that is not initial-exec"
    echo "ok: no text relocations, no executable stack, no thread-local variable that is found by a call"

    # The archive with plain cc: no C++ runtime may be wanted.
    check "libnumacre.a links with plain cc" cc -I"$prefix/include" "$here/consumer/c/main.c" "$libdir/libnumacre.a" -pthread -o "$scratch/plain"
    expect_run "C with the archive" "$scratch/plain"
    readelf -dW "$scratch/plain" | grep -E 'NEEDED.*(stdc\+\+|gcc_s|atomic)' && die "the archive needs a compiler's run-time library"
    return 0
}

# Programs that were built with this version have to run with later ones. The baseline has what they can see: functions,
# their types, the structs of the headers, and what inline.h compiles into them.
abi() {
    local baseline=$here/libnumacre.abi
    if ! command -v abidiff >/dev/null || [ "$(uname -m)" != x86_64 ]; then
        echo "SKIP: no abidiff (Debian: abigail-tools), or not x86-64, for which the baseline is"
        exit 77
    fi
    abidw --exported-interfaces-only --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --drop-private-types \
        --headers-dir "$prefix/include/numacre" "$libdir/libnumacre.so.0" | sed "s|path='$source_dir/|path='|" >"$scratch/now.abi"
    grep -q "numacre_pool_info" "$scratch/now.abi" || die "the library has no debug information: nothing can be compared"
    if [ "$renew" = --renew ]; then
        cp "$scratch/now.abi" "$baseline"
        echo "written: $baseline"
        return
    fi
    abidiff "$baseline" "$scratch/now.abi" || die "the ABI is another (above). If that is meant, and old programs go on
        working: tests/package/package_test.sh abi --renew (NUMACRE_SOURCE_DIR and NUMACRE_BUILD_DIR set), and say it in CHANGELOG.md"
    echo "ok: the ABI is that of libnumacre.abi"
}

header() {
    local include=-I$prefix/include name compiler
    # The header of the DPDK driver is there where DPDK is.
    find "$prefix/include" -type f ! -name rte_mempool_numacre.h -printf '%P\n' | sort >"$scratch/installed"
    printf 'numacre/%s\n' adaptors/af_xdp.h adaptors/io_uring.h adaptors/packet.h error.hpp inline.h numacre.h \
        numacre.hpp result.hpp shm/cached_block.h >"$scratch/public"
    diff "$scratch/public" "$scratch/installed" || die "public (<) and installed (>) headers differ"
    echo "ok: the public headers are installed, and no other"

    # All of them in one file, in every language that they are for.
    printf '#include <numacre/%s>\n' numacre.h inline.h shm/cached_block.h | tee "$scratch/all.c" >"$scratch/all11.cpp"
    printf '#include <numacre/%s>\n' numacre.hpp inline.h numacre.h error.hpp result.hpp shm/cached_block.h >"$scratch/all20.cpp"
    for compiler in gcc clang-22 clang; do
        command -v "$compiler" >/dev/null 2>&1 || continue
        check "all headers in one file, C11, $compiler" "$compiler" -std=c11 -Wall -Wextra -Wpedantic -Werror "$include" -c "$scratch/all.c" -o "$scratch/o"
        check "all headers in one file, C++11, $compiler" "$compiler" -std=c++11 -Wall -Wextra -Wpedantic -Werror "$include" -c "$scratch/all11.cpp" -o "$scratch/o"
        check "all headers in one file, C++20, $compiler" "$compiler" -std=c++20 -Wall -Wextra -Wpedantic -Werror "$include" -c "$scratch/all20.cpp" -o "$scratch/o"
    done
    for name in numacre.h inline.h shm/cached_block.h; do
        echo "#include <numacre/$name>" | tee "$scratch/first.c" >"$scratch/first.cpp"
        check "$name as C11" cc -std=c11 -pedantic-errors -Wall -Wextra -Wstrict-prototypes -Werror "$include" -c "$scratch/first.c" -o "$scratch/o"
        check "$name as C++20" c++ -std=c++20 -pedantic-errors -Wall -Wextra -Werror "$include" -c "$scratch/first.cpp" -o "$scratch/o"
        check "$name as C++11" c++ -std=c++11 -pedantic-errors -Wall -Wextra -Werror "$include" -c "$scratch/first.cpp" -o "$scratch/o"
        for compiler in clang clang-22 clang-19; do
            command -v "$compiler" >/dev/null 2>&1 || continue
            check "$name as C11 by $compiler" "$compiler" -std=c11 -pedantic-errors -Weverything -Wno-unsafe-buffer-usage -Werror "$include" \
                -c "$scratch/first.c" -o "$scratch/o"
            break
        done
    done
    # Adaptors: over the headers of another library.
    local library
    for name in af_xdp.h:libxdp io_uring.h:liburing; do
        library=${name#*:}
        name=adaptors/${name%:*}
        if ! pkg-config --exists "$library"; then
            echo "skipped: no $library here (Debian: $library-dev): $name is not compiled"
            continue
        fi
        echo "#include <numacre/$name>" | tee "$scratch/first.c" >"$scratch/first.cpp"
        for compiler in gcc clang-22 clang; do
            command -v "$compiler" >/dev/null 2>&1 || continue
            check "$name as C11 by $compiler" "$compiler" -std=c11 -Wall -Wextra -Wpedantic -Wstrict-prototypes -Wconversion -Werror \
                "$include" -c "$scratch/first.c" -o "$scratch/o"
            check "$name as C++11 by $compiler" "$compiler" -x c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror "$include" -c "$scratch/first.cpp" -o "$scratch/o"
            check "$name as C++20 by $compiler" "$compiler" -x c++ -std=c++20 -Wall -Wextra -Wpedantic -Werror "$include" -c "$scratch/first.cpp" -o "$scratch/o"
        done
    done
    # A header of the C++ face that forgets an include of its own.
    while read -r header; do
        printf '#include <%s>\n' "${header#"$prefix/include/"}" >"$scratch/first.cpp"
        check "${header#"$prefix/include/"} alone" c++ -std=c++20 -Wall -Wextra -Werror "$include" -c "$scratch/first.cpp" -o "$scratch/o"
    done < <(find "$prefix/include" -name '*.hpp' | sort)
}

service() {
    local unit=$prefix/lib/systemd/system/numacred.service
    [ -f "$unit" ] || die "the unit is not installed"
    grep -qx "ExecStart=$prefix/bin/numacred --config /etc/numacre/numacred.toml" "$unit" ||
        die "the unit does not start the installed program: $(grep ExecStart= "$unit")"
    check "the sample configuration" "$prefix/bin/numacred" --config "$prefix/share/numacre/numacred.toml" --check-config
    if ! command -v systemd-analyze >/dev/null 2>&1; then
        echo "skipped: no systemd-analyze here"
        exit 77
    fi
    check "systemd-analyze verify" systemd-analyze verify --man=no "$unit"
    if [ -s "$scratch/log" ]; then cat "$scratch/log"; die "systemd-analyze verify has something to say"; fi
    # The threshold is in tenths: 30 is 3.0 of 10, at the better end of what systemd calls OK.
    check "systemd-analyze security at most 3.0" systemd-analyze security --offline=true --no-pager --threshold=30 "$unit"
}

case $part in
    consumer | library | abi | header | service) "$part" ;;
    *) die "unknown part '$part'; give consumer, library, abi, header or service" ;;
esac
