#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A small Ceph for tests, on this host alone: a monitor, a manager, OSDs on sparse files, and a gateway for S3. It has no keys and
# listens on 127.0.0.1. All that it writes is below DIR, and all processes that it ends are those whose numbers are there.
#
#     ceph.sh start DIR       makes a cluster, or starts the one that DIR has; pool "kvcache"; prints the path of its ceph.conf
#     ceph.sh gateway DIR     starts RGW on it, with user "kvcache" and bucket "kvcache"; prints its address
#     ceph.sh stop DIR        stops it, in a second; its data stays
#     ceph.sh destroy DIR     stops it and removes DIR
#     ceph.sh kill DIR NAME   SIGKILL: mon, mgr, osd.0, osd.1, ..., gateway
#     ceph.sh revive DIR NAME starts what was killed
#     ceph.sh hang DIR NAME   SIGSTOP; NAME may be "osds" for all of them
#     ceph.sh resume DIR NAME SIGCONT
#     ceph.sh lose DIR PERCENT of the packets from and to all that listens, at random, by nftables; 0: none any more, and prints how
#                             many it were: those to them "+" those from them. Exit status 77: the kernel does not do that
#     ceph.sh ceph DIR ...    the command "ceph" with its configuration; also rados, radosgw-admin
#     ceph.sh wait DIR        until all OSDs are up, all placement groups serve, and an object (of the gateway, too, where it runs)
#                             is written, read back and deleted, 120 s at most
#
# Environment for start: OSDS (3), OSD_SIZE (12G, sparse), REPLICAS (1).
set -eu

usage() {
        sed -n 's/^# \{0,1\}//; 3,21p' "$0" >&2
        exit 2
}
[ $# -ge 2 ] || usage
action=$1 dir=$2
shift 2
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
conf=$dir/ceph.conf
osds=${OSDS:-3}
[ ! -f "$dir/osds" ] || osds=$(cat "$dir/osds")

say() {
        echo "ceph.sh: $*" >&2
}
admin() {
        timeout 60 ceph --conf "$conf" --connect-timeout 20 "$@"
}
pid_of() {
        cat "$dir/run/$1.pid" 2>/dev/null || echo
}
is_running() {
        pid=$(pid_of "$1")
        # Not another program that has its number by now.
        [ -n "$pid" ] && grep -qs "$dir" "/proc/$pid/cmdline" && ! grep -qs '^State:.Z' "/proc/$pid/status"
}
# All of its threads: its pid file and its disk are locked until then. The first thread may be a zombie long before.
has_ended() {
        pid=$(pid_of "$1")
        [ -n "$pid" ] && grep -Eqs '^(ceph-|radosgw)' "/proc/$pid/comm" || return 0
        grep -qs '^State:.Z' "/proc/$pid/status" && [ "$(ls "/proc/$pid/task" 2>/dev/null)" = "$pid" ]
}
signal() {
        is_running "$2" || return 0
        kill "-$1" "$(pid_of "$2")" 2>/dev/null || :
}
# until SECONDS COMMAND...
until_true() {
        until=$(($(date +%s) + $1))
        shift
        while ! "$@" >/dev/null 2>&1; do
                [ "$(date +%s)" -lt "$until" ] || return 1
                sleep 0.1
        done
}
free_port() {
        python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
start_one() {
        is_running "$1" && return 0
        rm -f "$dir/run/$1.asok"
        case $1 in
        mon) ceph-mon --conf "$conf" -i a ;;
        mgr) ceph-mgr --conf "$conf" -i a ;;
        osd.*) ceph-osd --conf "$conf" -i "${1#osd.}" ;;
        gateway) timeout 60 radosgw --conf "$conf" -n client.gateway ;;
        *) usage ;;
        esac >>"$dir/log/start.log" 2>&1 </dev/null
}
all() {
        echo mon mgr
        i=0
        while [ $i -lt "$osds" ]; do
                echo "osd.$i"
                i=$((i + 1))
        done
}
names() {
        case $1 in
        osds) all | tr ' ' '\n' | grep '^osd' ;;
        all) all ;;
        *) echo "$1" ;;
        esac
}
# What the manager says of placement groups may be seconds old: objects() is what tells.
is_whole() {
        echo "not all OSDs are up" >"$dir/run/lacks"
        admin osd stat 2>/dev/null | grep -q "$osds osds: $osds up" || return 1
        echo "the manager does not tell of placement groups, or some do not serve" >"$dir/run/lacks"
        admin pg stat 2>/dev/null >"$dir/run/pgs" || return 1
        ! grep -Eq 'unknown|peering|inactive|down|stale|creating|activating|laggy|wait' "$dir/run/pgs" || return 1
        echo "an object cannot be written, read, deleted or listed in the pool" >"$dir/run/lacks"
        objects || return 1
        echo "an object cannot be written, read or deleted by the gateway" >"$dir/run/lacks"
        objects_s3
}
in_pool() {
        timeout 10 rados --conf "$conf" -p kvcache -N ceph.sh "$@"
}
# Written, read back and deleted; the list is asked of each placement group of the pool.
objects() {
        date +%s.%N >"$dir/run/written"
        rm -f "$dir/run/read"
        in_pool put probe "$dir/run/written" && in_pool get probe "$dir/run/read" && cmp -s "$dir/run/written" "$dir/run/read" &&
                in_pool rm probe && in_pool ls
}
objects_s3() {
        is_running gateway && [ -f "$dir/credentials" ] || return 0
        object=http://127.0.0.1:$(cat "$dir/gateway-port")/kvcache/ceph.sh/probe
        rm -f "$dir/run/read"
        s3 -T "$dir/run/written" "$object" && s3 -o "$dir/run/read" "$object" && cmp -s "$dir/run/written" "$dir/run/read" &&
                s3 -X DELETE "$object"
}
# libcurl signs what it is given; S3 wants the payload's hash among it.
s3() {
        curl -sf -m 10 -H "x-amz-content-sha256: UNSIGNED-PAYLOAD" --aws-sigv4 aws:amz:us-east-1:s3 \
                --user AKIAKVCACHE:kvcache-secret/of+tests "$@"
}
# Of all that runs.
ports() {
        for name in gateway $(all); do
                ! is_running "$name" || ss -Hltnp | sed -n "s/^LISTEN *[^ ]* *[^ ]* *[^ ]*:\([0-9]*\) .*pid=$(pid_of "$name"),.*/\1/p"
        done | sort -un | paste -sd, -
}
# A table of its own, whose name no other cluster has.
table() {
        echo "kvcache_fleet_$(cat "$dir/mon-port")"
}
lose() {
        nft list table inet "$(table)" 2>/dev/null | sed -n 's/.*counter packets \([0-9]*\).*/\1/p' | paste -sd+ -
        nft delete table inet "$(table)" 2>/dev/null || :
        [ "$1" != 0 ] || return 0
        nft -f - <<END
table inet $(table) {
        chain input {
                type filter hook input priority filter
                tcp dport { $(ports) } numgen random mod 100 < $1 counter drop
                tcp sport { $(ports) } numgen random mod 100 < $1 counter drop
        }
}
END
}
wait_until_whole() {
        until_true 120 is_whole && return
        say "the cluster does not serve after 120 s: $(cat "$dir/run/lacks"): $dir/log"
        { admin health detail; admin pg stat; admin pg dump_stuck; } >&2 || :
        exit 1
}

write_conf() {
        port=$(free_port)
        web=$(free_port)
        cat >"$conf" <<END
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon_host = v2:127.0.0.1:$port
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv4 = true
ms_bind_ipv6 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
run_dir = $dir/run
log_file = $dir/log/\$name.log
pid_file = $dir/run/\$name.pid
admin_socket = $dir/run/\$name.asok
crash_dir = $dir/log
osd_pool_default_size = ${REPLICAS:-1}
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 16
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_max_pg_per_osd = 1000
mon_warn_on_pool_no_redundancy = false
[client]
admin_socket =
log_file =
pid_file =
[client.gateway]
# Its own default is "secure", which there is not without keys: it would wait for five minutes and end.
ms_mon_client_mode = crc
log_file = $dir/log/gateway.log
pid_file = $dir/run/gateway.pid
admin_socket = $dir/run/gateway.asok
rgw_frontends = beast endpoint=127.0.0.1:$web
rgw_data = $dir/gateway
rgw_enable_usage_log = false
rgw_enable_gc_threads = true
rgw_thread_pool_size = 64
[mon]
mon_data = $dir/mon
log_file = $dir/log/mon.log
pid_file = $dir/run/mon.pid
mon_data_avail_warn = 1
mon_data_avail_crit = 1
mon_osd_down_out_interval = 3600
mon_cluster_log_file = $dir/log/cluster.log
[mgr]
mgr_data = $dir/mgr
log_file = $dir/log/mgr.log
pid_file = $dir/run/mgr.pid
mgr_initial_modules =
mgr_stats_period = 1
[osd]
osd_data = $dir/osd.\$id
log_file = $dir/log/osd.\$id.log
pid_file = $dir/run/osd.\$id.pid
osd_objectstore = bluestore
osd_memory_target = 939524096
bluestore_block_create = true
bluestore_block_size = $(numfmt --from=iec "${OSD_SIZE:-12G}")
osd_heartbeat_grace = 8
# An OSD that was stopped for longer than its read lease (the grace times this) calls placement groups laggy. In a pool with one copy
# nothing ends that but another peering (16.2 and others; https://github.com/ceph/ceph-container/issues/1682), and what is asked of them
# waits for ever. So the lease is longer than any test.
osd_pool_default_read_lease_ratio = 500
# Nor does one end because it was found down for the fifth time in ten minutes.
osd_max_markdown_count = 1000
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 2
osd_max_object_name_len = 512
END
        echo "$port" >"$dir/mon-port"
        echo "$web" >"$dir/gateway-port"
}

make_cluster() {
        for program in ceph-mon ceph-mgr ceph-osd ceph monmaptool; do
                command -v $program >/dev/null || { say "$program is not installed"; exit 77; }
        done
        mkdir -p "$dir/run" "$dir/log" "$dir/mon" "$dir/mgr" "$dir/gateway"
        echo "$osds" >"$dir/osds"
        write_conf
        monmaptool --create --clobber --fsid "$(sed -n 's/^fsid = //p' "$conf")" \
                --addv a "[v2:127.0.0.1:$(cat "$dir/mon-port")]" "$dir/monmap" >"$dir/log/start.log"
        ceph-mon --conf "$conf" --mkfs -i a --monmap "$dir/monmap" >>"$dir/log/start.log" 2>&1
        start_one mon
        # The balancer moves placement groups, a minute after the manager has come. What is asked of such a one waits until it has been
        # copied there, ten objects a second: a write to a bucket's index for minutes, once there are thousands of objects.
        admin config set mgr mgr/balancer/active false --force >>"$dir/log/start.log" 2>&1
        start_one mgr
        i=0
        while [ $i -lt "$osds" ]; do
                uuid=$(cat /proc/sys/kernel/random/uuid)
                mkdir -p "$dir/osd.$i"
                admin osd new "$uuid" $i >>"$dir/log/start.log"
                ceph-osd --conf "$conf" -i $i --mkfs --osd-uuid "$uuid" >>"$dir/log/start.log" 2>&1 &
                i=$((i + 1))
        done
        wait
        for name in $(names osds); do
                start_one "$name"
        done
        admin osd pool create kvcache 32 >>"$dir/log/start.log" 2>&1
        admin osd pool application enable kvcache kvcache >>"$dir/log/start.log" 2>&1
        : >"$dir/made"
}

case $action in
start)
        if [ -f "$dir/made" ]; then
                for name in $(all); do
                        start_one "$name"
                done
        else
                make_cluster
        fi
        wait_until_whole
        echo "$conf"
        ;;
wait)
        wait_until_whole
        ;;
gateway)
        command -v radosgw >/dev/null || { say "radosgw is not installed"; exit 77; }
        address=http://127.0.0.1:$(cat "$dir/gateway-port")
        start_one gateway
        until_true 60 curl -s -m 5 -o "$dir/run/web" "$address" || { say "the gateway does not answer: $dir/log/gateway.log"; exit 1; }
        if [ ! -f "$dir/credentials" ]; then
                timeout 60 radosgw-admin --conf "$conf" user create --uid kvcache --display-name kvcache \
                        --access-key AKIAKVCACHE --secret-key kvcache-secret/of+tests >>"$dir/log/start.log" 2>&1
                (
                        umask 077
                        cat >"$dir/credentials" <<'END'
[default]
aws_access_key_id = AKIAKVCACHE
aws_secret_access_key = kvcache-secret/of+tests
END
                )
        fi
        s3 -m 60 -X PUT "$address/kvcache" >>"$dir/log/start.log" 2>&1 || { say "the bucket cannot be made: $dir/log/gateway.log"; exit 1; }
        echo "$address"
        ;;
lose)
        [ $# -eq 1 ] || usage
        command -v nft >/dev/null || { say "nft is not installed"; exit 77; }
        lose "$1" || { say "this kernel drops no packets at random (nftables, numgen)"; exit 77; }
        ;;
stop | destroy)
        lose 0
        for name in gateway $(names osds) mgr mon; do
                signal CONT "$name"
                signal TERM "$name"
        done
        for name in gateway $(names osds) mgr mon; do
                until_true 10 has_ended "$name" || signal KILL "$name"
                until_true 30 has_ended "$name" || :
        done
        [ "$action" = stop ] || rm -rf "$dir"
        ;;
kill | hang | resume | revive)
        [ $# -eq 1 ] || usage
        for name in $(names "$1"); do
                case $action in
                kill) signal KILL "$name" ;;
                hang) signal STOP "$name" ;;
                resume) signal CONT "$name" ;;
                revive) start_one "$name" ;;
                esac
        done
        for name in $(names "$1"); do
                [ "$action" != kill ] || until_true 30 has_ended "$name" || { say "$name does not end"; exit 1; }
        done
        ;;
ceph) exec ceph --conf "$conf" --connect-timeout 20 "$@" ;;
rados | radosgw-admin) exec "$action" --conf "$conf" "$@" ;;
*) usage ;;
esac
