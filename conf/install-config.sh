#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copies the commented configuration to where the daemon reads it, unless a file is there already: what an
# administrator has edited is neither overwritten by an install nor removed by an uninstall, which removes only
# what meson has installed itself. The template beside it in the data directory is meson's, and always current.
#
#   install-config.sh TEMPLATE DIRECTORY        run by "meson install", which sets DESTDIR
set -eu

template=$1
directory=${DESTDIR:-}$2
target=$directory/kvcache.yaml

# A dangling link is an administrator's choice as well.
if [ -e "$target" ] || [ -L "$target" ] || [ -n "${MESON_INSTALL_DRY_RUN:-}" ]; then
        exit 0
fi
mkdir -p "$directory"
# Under a name of its own first: what is interrupted leaves no half of a configuration.
trap 'rm -f "$target.new.$$"' EXIT
cp "$template" "$target.new.$$"
chmod 0644 "$target.new.$$"
mv "$target.new.$$" "$target"
