# SPDX-License-Identifier: Apache-2.0
# Completion of kvcache-daemon for fish. The keys of the configuration are those of its --help.
complete -c kvcache-daemon -f
complete -c kvcache-daemon -s c -l config -r -F -d 'read FILE, and then FILE.d/*.yaml'
complete -c kvcache-daemon -s s -l set -x -d 'override a key' \
    -a '(kvcache-daemon --help 2>/dev/null | string replace -rf "^  ([a-z_]+\.[a-z_]+)=.*" "\$1=")'
complete -c kvcache-daemon -l check-config -d 'print every error in the configuration, and exit'
complete -c kvcache-daemon -l print-config -d 'print the effective configuration, and exit'
complete -c kvcache-daemon -s h -l help -d 'print help, and exit'
complete -c kvcache-daemon -s V -l version -d 'print the version, and exit'
