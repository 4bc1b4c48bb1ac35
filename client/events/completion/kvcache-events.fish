# SPDX-License-Identifier: Apache-2.0
# Completion of kvcache-events for fish.
complete -c kvcache-events -f
complete -c kvcache-events -s s -l socket -r -F -d 'the socket of the daemon'
complete -c kvcache-events -s e -l endpoint -x -d 'where to publish'
complete -c kvcache-events -s r -l replay -x -a off -d 'where subscribers ask for earlier batches'
complete -c kvcache-events -s t -l topic -x -d 'the topic of all batches'
complete -c kvcache-events -s b -l buffer -x -d 'batches kept for replay'
complete -c kvcache-events -s k -l block-size -x -d 'the block_size of BlockStored, in tokens'
complete -c kvcache-events -s h -l help -d 'print help, and exit'
complete -c kvcache-events -s V -l version -d 'print the version, and exit'
