# SPDX-License-Identifier: Apache-2.0
# What zsh offers for command lines: zsh -f complete.zsh DIRECTORY LINE... prints the words for each LINE in one line. An interactive
# zsh on a terminal of its own gets the line and a Tab; its compadd prints the words that match instead of adding them. What is searched
# for is in two parts in what is typed, which the terminal may echo.
zmodload zsh/zpty || exit 77
zpty shell zsh -f -i
line() { zpty -w shell "$1" }
line "PS1= PROMPT_EOL_MARK= && stty -echo columns 1000 && fpath=(${(q)1} \$fpath) && autoload -Uz compinit && compinit -D -u"
line 'compadd() {
        [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]] && { builtin compadd "$@"; return }
        local -a hits; local hit
        builtin compadd -A hits "$@"
        for hit in $hits; do print -r -- "WO""RD:$hit:"; done
}
zstyle ":completion:*" completer _complete
all-printed() { print -r -- "END-""OF-WORDS" }
zle -N all-printed; bindkey "^I" complete-word; bindkey "^T" all-printed; bindkey "^U" kill-whole-line
print READY''-NOW'
zpty -r -m shell text '*READY-NOW*' || exit 1
shift
for typed; do
        zpty -n -w shell $'\x15'"$typed"$'\t\x14'
        zpty -r -m shell text '*END-OF-WORDS*' || exit 1
        words=()
        for match in ${(M)${(f)text}:#*WORD:*}; do
                match=${match#*WORD:}
                words+=(${match%:*})
        done
        print -r -- $words
done
zpty -d shell
