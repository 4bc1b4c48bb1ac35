# SPDX-License-Identifier: Apache-2.0
# Completion of kvcache-daemon for bash. The keys of the configuration are those of its --help; where no word is known, file
# names are completed.
_kvcache_complete_kvcache_daemon()
{
        local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]} keys
        local options='--config --set --check-config --print-config --help --version'
        COMPREPLY=()
        # "--option=value" are three words, and "--set key=value" are four.
        if [[ $word == = ]]; then
                word=''
        elif [[ $option == = ]] && ((COMP_CWORD > 1)); then
                option=${COMP_WORDS[COMP_CWORD-2]}
        fi
        case $option in
        -s | --set)
                keys=$("${COMP_WORDS[0]}" --help 2>/dev/null | sed -n 's/^  \([a-z_]*\.[a-z_]*\)=.*/\1/p')
                COMPREPLY=($(compgen -S = -W "$keys" -- "$word"))
                compopt -o nospace 2>/dev/null
                ;;
        -c | --config) ;;
        *)
                [[ $word == -* || $word == '' ]] && COMPREPLY=($(compgen -W "$options" -- "$word"))
                ;;
        esac
}
complete -o default -F _kvcache_complete_kvcache_daemon kvcache-daemon
