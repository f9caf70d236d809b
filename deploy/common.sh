# shellcheck shell=bash disable=SC2034 # some variables are for the scripts that source this
# Functions that the scripts in deploy/ and tests/run share. This file is sourced, never run.

say() { printf '\n==> %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }
warn() { printf '\n!!! %s\n' "$*" >&2; }
fail() {
    printf '\n%s: error: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Succeeds if as_root can work without a question that nobody would answer, as in CI.
can_be_root() {
    [ "$(id -u)" -eq 0 ] && return 0
    command -v sudo >/dev/null 2>&1 || return 1
    sudo -n true 2>/dev/null && return 0
    # A terminal means that somebody can type the password.
    [ -t 0 ] && sudo -v
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

hugepages_dir=/sys/kernel/mm/hugepages/hugepages-2048kB

# hugepages_add COUNT: makes sure that COUNT pages of 2 MiB are free, and raises the reserved number if necessary. Sets
# hugepages_added to the number of pages that were really added. Give back exactly that number: other programs may raise
# and lower the reserved number in between. Returns 1, with the reason in hugepages_problem, when fewer than COUNT pages
# are free afterwards.
hugepages_added=0 hugepages_problem=
hugepages_add() {
    local want=$1 free total after
    hugepages_added=0
    hugepages_problem=
    if [ ! -r "$hugepages_dir/nr_hugepages" ]; then
        hugepages_problem="this kernel has no 2 MiB hugepages ($hugepages_dir is missing)"
        return 1
    fi
    free=$(cat "$hugepages_dir/free_hugepages")
    total=$(cat "$hugepages_dir/nr_hugepages")
    [ "$free" -ge "$want" ] && return 0
    if ! can_be_root; then
        hugepages_problem="$free of $want are free and only root may reserve more"
        return 1
    fi
    if ! echo $((total + want - free)) | as_root tee "$hugepages_dir/nr_hugepages" >/dev/null 2>&1; then
        hugepages_problem="$free of $want are free and $hugepages_dir/nr_hugepages cannot be written (a container?)"
        return 1
    fi
    after=$(cat "$hugepages_dir/nr_hugepages")
    hugepages_added=$((after - total))
    free=$(cat "$hugepages_dir/free_hugepages")
    if [ "$free" -lt "$want" ]; then
        hugepages_problem="only $free of $want could be made free: memory is short or fragmented"
        return 1
    fi
}

# hugepages_give_back COUNT: lowers the reserved number by COUNT. Pages in use stay until their user releases them.
hugepages_give_back() {
    local count=$1 total
    [ "$count" -gt 0 ] || return 0
    total=$(cat "$hugepages_dir/nr_hugepages")
    [ "$count" -le "$total" ] || count=$total
    echo $((total - count)) | as_root tee "$hugepages_dir/nr_hugepages" >/dev/null
}
