# SPDX-License-Identifier: Apache-2.0
# Completion of kvcache-events for bash. Where no word is known, file names are completed.
_kvcache_complete_kvcache_events()
{
        local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]}
        local options='--socket --endpoint --replay --topic --buffer --block-size --help --version'
        COMPREPLY=()
        # "--option=value" are three words.
        if [[ $word == = ]]; then
                word=''
        elif [[ $option == = ]] && ((COMP_CWORD > 1)); then
                option=${COMP_WORDS[COMP_CWORD-2]}
        fi
        case $option in
        -r | --replay) COMPREPLY=($(compgen -W off -- "$word")) ;;
        -s | --socket | -e | --endpoint | -t | --topic | -b | --buffer | -k | --block-size) ;;
        *)
                [[ $word == -* || $word == '' ]] && COMPREPLY=($(compgen -W "$options" -- "$word"))
                ;;
        esac
}
complete -o default -F _kvcache_complete_kvcache_events kvcache-events
