# bash completion for numacre: verbs, options, pool names and client ids.

# Prints the words of the first column under the head of a verb's table. Without a daemon it prints nothing, and no error either.
_numacre_column() {
    local -a global=()
    local i
    for ((i = 1; i < COMP_CWORD; ++i)); do
        if [[ ${COMP_WORDS[i]} == --runtime-dir ]]; then
            global=(--runtime-dir "${COMP_WORDS[i + 1]}")
        fi
    done
    "${COMP_WORDS[0]}" "${global[@]}" --timeout 1s "$@" 2>/dev/null | awk 'NR > 1 { print $1 }'
}

_numacre() {
    local current=${COMP_WORDS[COMP_CWORD]}
    local previous=${COMP_WORDS[COMP_CWORD - 1]}
    local verbs="status pools clients channels names nodes resize create get set delete drain evict quota reserve stats"
    verbs+=" buddyinfo extfrag map top doctor advise bench"
    local options="--runtime-dir --json --ascii --timeout --help"
    local verb="" word i words="" first=""
    local -i positionals=0
    for ((i = 1; i < COMP_CWORD; ++i)); do
        word=${COMP_WORDS[i]}
        case $word in
            --runtime-dir | --timeout | --node | --capacity | --online | --frame | --largest | --backing | \
                --max-clients | --owner | --group | --mode | --reclaim | --low-watermark | --policy | --autosize | --soft | \
                --max-threads | --max-threads-per-client | --fit | --quota | --soft-quota | --user-quota | --object | --colouring | --object-memory | \
                --pin-quarantine | --remove | \
                --user | --pool | --chunk | --grace | --interval | --count | --cells | --client | --limit | --for | --operations | --rounds)
                i=$((i + 1)) ;;
            replay) if [[ $verb == bench ]]; then verb="bench replay"; else positionals+=1; fi ;;
            -*) ;;
            *) if [[ -z $verb ]]; then verb=$word; else positionals+=1; first=${first:-$word}; fi ;;
        esac
    done

    COMPREPLY=()
    case $previous in
        --runtime-dir)
            mapfile -t COMPREPLY < <(compgen -d -- "$current")
            return ;;
        --backing)
            mapfile -t COMPREPLY < <(compgen -W "hugetlb-1g hugetlb thp small best" -- "$current")
            return ;;
        --policy)
            mapfile -t COMPREPLY < <(compgen -W "local strict preferred:0 interleave interleave-frames" -- "$current")
            return ;;
        --colouring)
            mapfile -t COMPREPLY < <(compgen -W "on off" -- "$current")
            return ;;
        --fit)
            mapfile -t COMPREPLY < <(compgen -W "nearby compact best" -- "$current")
            return ;;
        --owner | --user)
            mapfile -t COMPREPLY < <(compgen -u -- "$current")
            return ;;
        --pool)
            mapfile -t COMPREPLY < <(compgen -W "$(_numacre_column pools)" -- "$current")
            return ;;
        --group)
            mapfile -t COMPREPLY < <(compgen -g -- "$current")
            return ;;
        --timeout | --node | --capacity | --online | --frame | --largest | --max-clients | --mode | --chunk | \
            --max-threads | --max-threads-per-client | --quota | --soft-quota | --user-quota | --reclaim | --object | --object-memory | --pin-quarantine | --remove | \
            --low-watermark | --autosize | --soft | --grace | --interval | --count | --cells | --client | --limit | --for | --operations | --rounds)
            return ;;
    esac
    if [[ -z $verb ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$verbs $options --version" -- "$current")
        return
    fi

    case $verb in
        clients) options+=" --blocks --client --limit" ;;
        channels) options+=" --remove --force --interval" ;;
        names) options+=" --remove" ;;
        resize) options+=" --node --dry-run" ;;
        create) options+=" --capacity --online --frame --largest --backing --max-clients"
            options+=" --owner --group --mode --reclaim --low-watermark --policy --autosize"
            options+=" --max-threads --max-threads-per-client --fit --quota --soft-quota --user-quota"
            options+=" --object --count --colouring --object-memory --pin-quarantine" ;;
        delete) options+=" --force --abandon" ;;
        drain) options+=" --node --chunk --undo" ;;
        evict) options+=" --grace" ;;
        quota) options+=" --soft --user --pool" ;;
        reserve) options+=" --user --pool" ;;
        buddyinfo | extfrag) options+=" --heads" ;;
        map) options+=" --node --cells" ;;
        top) options+=" --interval --count" ;;
        advise) options+=" --for" ;;
        bench) options+=" --private --operations --rounds" ;;
        "bench replay") options+=" --frame --largest" ;;
    esac
    if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
        return
    fi
    if [[ $verb == "bench replay" ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
    fi
    if ((positionals == 0)); then
        case $verb in
            clients | channels | names | resize | get | set | delete | drain | stats | buddyinfo | extfrag | map | advise | bench)
                words=$(_numacre_column pools)
                [[ $verb == bench ]] && words+=" replay" ;;
            evict | quota | reserve) words=$(_numacre_column clients | grep '^[0-9]') ;;  # not the line about channels
        esac
    elif [[ $verb == get ]] && ((positionals == 1)); then
        words=$(_numacre_column get "$first")
    elif [[ $verb == set ]]; then
        words=$(_numacre_column get "$first" | sed 's/$/=/')
        compopt -o nospace 2>/dev/null
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
complete -F _numacre numacre
