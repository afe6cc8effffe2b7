# Hands out the configuration and the version of the server in this image. $1: directory of the configuration.
set -e
staged=/opt/opentelemetry-webserver/source-conf

cp -r "$1/." "$staged"
version=$(nginx -v 2>&1)
version=${version##*/}
printf '%s\n' "${version%% *}" > "$staged/version.txt"
