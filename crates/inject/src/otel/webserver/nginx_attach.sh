# Adds the module to a copy of the server's configuration. $1: name of the main configuration file.
set -e
agent=/opt/opentelemetry-webserver/agent
staged=/opt/opentelemetry-webserver/source-conf
main=$staged/$1

cp -r /opt/opentelemetry/. "$agent"
mkdir -p "$agent/logs" "$staged/conf.d"
log=$agent/conf/opentelemetry_sdk_log4cxx.xml
sed "s|__agent_log_dir__|$agent/logs|g" "$log.template" > "$log"

printf '%s\n' "$OTEL_NGINX_AGENT_CONF" |
    sed "s|<<SID-PLACEHOLDER>>|$OTEL_NGINX_SERVICE_INSTANCE_ID|g" > "$staged/conf.d/opentelemetry_agent.conf"

# nginx hides its environment from modules unless told otherwise. A restarted init container finds its lines.
module=$agent/WebServerModule/Nginx/$(cat "$staged/version.txt")/ngx_http_opentelemetry_module.so
if ! grep -qF ngx_http_opentelemetry_module.so "$main"; then
    {
        printf '%s\n' 'env OTEL_RESOURCE_ATTRIBUTES;' "load_module $module;"
        cat "$main"
    } > "$main.new"
    mv -f "$main.new" "$main"
fi
