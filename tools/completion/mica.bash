# SPDX-License-Identifier: Apache-2.0
# Completion of mica(1) for bash. Commands, options and operations come from the tool itself.

_mica()
{
    local tool=${COMP_WORDS[0]} command=${COMP_WORDS[1]} word previous
    word=${COMP_WORDS[COMP_CWORD]}
    previous=${COMP_WORDS[COMP_CWORD - 1]}
    if [ "$COMP_CWORD" = 1 ]; then
        COMPREPLY=($(compgen -W "--help --version $("$tool" --help 2>/dev/null |
            sed -n '/^Examples/q; s/^  \([a-z]*\) .*/\1/p')" -- "$word"))
        return
    fi
    case $word in
    -*)
        COMPREPLY=($(compgen -W "$("$tool" "$command" --help 2>/dev/null |
            grep -o -e '--[a-z][a-z-]*=\?')" -- "$word"))
        [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace
        return
        ;;
    esac
    case $previous in
    --device | -d)
        COMPREPLY=($(compgen -W "auto cpu cuda:0 sm_80 sm_89 sm_90a" -- "$word"))
        ;;
    help)
        COMPREPLY=($(compgen -W "$("$tool" --help 2>/dev/null |
            sed -n '/^Examples/q; s/^  \([a-z]*\) .*/\1/p')" -- "$word"))
        ;;
    cache)
        COMPREPLY=($(compgen -W "show warm pack unpack prune clear" -- "$word"))
        ;;
    cudnn)
        COMPREPLY=($(compgen -W "run path" -- "$word"))
        ;;
    *)
        COMPREPLY=($(compgen -f -- "$word")
            $(compgen -W "$("$tool" list 2>/dev/null | sed -n '2,$s/ .*//p')" -- "$word"))
        compopt -o filenames
        ;;
    esac
}
complete -F _mica mica
