# Adds the module to a copy of the server's configuration. $1: where the server expects that configuration.
set -e
agent=/opt/opentelemetry-webserver/agent
staged=/opt/opentelemetry-webserver/source-conf
conf=opentemetry_agent.conf

cp -r /opt/opentelemetry/. "$agent"
mkdir -p "$agent/logs"
log=$agent/conf/opentelemetry_sdk_log4cxx.xml
sed "s|__agent_log_dir__|$agent/logs|g" "$log.template" > "$log"

printf '%s\n' "$OTEL_APACHE_AGENT_CONF" |
    sed "s|<<SID-PLACEHOLDER>>|$APACHE_SERVICE_INSTANCE_ID|g" > "$staged/$conf"

# A restarted init container finds its own line.
line="Include $1/$conf"
grep -qxF "$line" "$staged/httpd.conf" || printf '\n%s\n' "$line" >> "$staged/httpd.conf"
