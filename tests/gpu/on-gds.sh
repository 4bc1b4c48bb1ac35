#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What only a GPU and cuFile can show: blocks on disk by cuFile, with every stage broken on purpose, and the rate beside
# cuFile alone.
#
#     on-gds.sh BUILD [check|bench]
#
# The store is in $KVCACHE_GDS_DIR, else $TMPDIR or /tmp; another in /dev/shm. libcufile.so.0 is looked for as the dynamic
# linker does, then in /usr/local/cuda*. Skips, with 77 and a reason, where there is no GPU or no cuFile.
set -u
build=$(cd "$1" && pwd) what=${2:-check}
check=$build/tests/gpu/gpu-check
here=$(cd "$(dirname "$0")" && pwd)
. "$here/daemon.sh"
begin "${KVCACHE_GDS_DIR:-${TMPDIR:-/tmp}}"
real=''
for found in $(echo "${LD_LIBRARY_PATH:-}" | tr : ' ') $(ldconfig -p 2>/dev/null | sed -n 's,.*libcufile\.so\.0 .*=> \(.*\)/libcufile.*,\1,p') \
        /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib; do
        [ -e "$found/libcufile.so.0" ] && real=$found/libcufile.so.0 && break
done
if [ -z "$real" ]; then
        echo "cuFile: skipped, there is no libcufile.so.0 here"
        exit 77
fi
echo "cuFile: $real; nvidia-fs: $(cat /proc/driver/nvidia-fs/version 2>/dev/null || echo none); the store: $(stat -f -c %T "$work")"
export CUFILE_LOGFILE_PATH="$work/cufile.log"

# WITH_PATH COMMAND...: the folder that libcufile.so.0 is in goes first.
with() {
        path=$1
        shift
        LD_LIBRARY_PATH="$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" timeout 120 "$@"
}
# TITLE FOLDER FAILURE REASON
one() {
        printf '%-34s' "$1"
        CUFILE_REAL=$real CUFILE_FAIL=$3 with "$2" "$check" "$work/s" gds ${4:+"$4"} >"$work/said" 2>&1 || failed=1
        tr '\n' ' ' <"$work/said"
        echo
}

mkdir "$work/nothing"
touch "$work/nothing/libcufile.so.0"
cufile=$(dirname "$real")
shim=$build/tests/gpu/cufile-shim
# cuFile looks the store's device up in udev's database, and refuses each file with 5027 if it is not there: reason enough to
# say so, and to go on without a figure.
start "$work" 256MiB 2GiB --set io.gds=on
one 'as it is' "$cufile" '' any
if grep -q '5027' "$work/said"; then
        echo "cuFile: $(stat -c 'device %Hd:%Ld' "$work") is not in /run/udev/data with ID_FS_TYPE and ID_FS_USAGE; the rest of the checks are skipped"
        exit 77
fi
grep -q ' 1024 blocks by cuFile\|^1024 blocks by cuFile' "$work/said" || failed=1
one 'without libcufile' "$work/nothing" '' 'no libcufile.so.0'
one 'its driver does not open' "$shim" 'cuFileDriverOpen 1 5001' "cuFile's driver does not open"
one 'no file is registered (5027)' "$shim" 'cuFileHandleRegister 1 5027' 'cuFile does not register the file'
one 'one read in a hundred fails' "$shim" 'cuFileRead 100 -1' 'the read or the write failed'
one 'all reads are short' "$shim" 'cuFileRead 1 512' any
one 'no handle is left (5031)' "$shim" 'cuFileHandleRegister 1 5031' 'cuFile does not register the file'
one 'no memory is registered (5036)' "$shim" 'cuFileBufRegister 1 5036' any
stop
start "$work" 256MiB 2GiB --set io.gds=on --set io.gds_puts=on
mkdir "$work/puts"
export KVCACHE_GDS_PUTS="$work/puts"
one 'puts by cuFile' "$cufile" '' any
grep -q '[1-9][0-9]* blocks put by cuFile' "$work/said" && ! grep -q 'put otherwise' "$work/said" || failed=1
one 'one write in ten fails' "$shim" 'cuFileWrite 10 -1' any
grep -q 'put otherwise' "$work/said" || failed=1
one 'all writes are short' "$shim" 'cuFileWrite 1 512' any
grep -q 'put otherwise' "$work/said" || failed=1
stop
unset KVCACHE_GDS_PUTS
if [ -w /dev/shm ]; then
        memory=$(mktemp -d /dev/shm/kvcache-gds.XXXXXX)
        start "$memory" 256MiB 2GiB --set io.gds=on
        one 'a store on tmpfs' "$cufile" '' any
        stop
fi
if [ "$what" = bench ]; then
        start "$work" 2GiB 8GiB --set io.gds=on --set io.gds_puts=on
        export KVCACHE_GDS_PUTS="$work/puts"
        with "$cufile" "$check" "$work/s" gds-bench || failed=1
        stop
fi
exit $failed
