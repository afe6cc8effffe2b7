//! nginx's stream module. It does not know where captured connections were going, so it is dialled by port; its client
//! side does not check who the server is (that module has no way to name the identity).

use super::Way;
use crate::certificates;
use crate::origin;
use crate::place;
use crate::process::{Process, Start};
use crate::world::{self, SERVER, World};

/// Where Debian keeps the module.
const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Whether it is there.
pub fn installed() -> bool {
    std::path::Path::new("/usr/sbin/nginx").exists() && std::path::Path::new(MODULE).exists()
}

/// Starts one.
pub fn start(world: &World, way: Way, client: bool) -> Process {
    let files = certificates::files(world).display().to_string();
    let (account, namespace) = if client {
        ("web", &world.lab.pod)
    } else {
        ("cart", &world.lab.peer)
    };
    let rows = if client {
        [
            ("127.0.0.1:16000", format!("{SERVER}:17000")),
            ("127.0.0.1:16001", format!("{SERVER}:17001")),
        ]
    } else {
        [
            ("0.0.0.0:17000", format!("127.0.0.1:{}", origin::HTTP)),
            ("0.0.0.0:17001", format!("127.0.0.1:{}", origin::SINK)),
        ]
    };
    let (mut listen, mut rest) = ("", String::new());
    if way == Way::Mtls && client {
        rest = format!(
            "proxy_ssl on; proxy_ssl_protocols TLSv1.3; proxy_ssl_certificate {files}/{account}.pem; \
             proxy_ssl_certificate_key {files}/{account}.key;"
        );
    } else if way == Way::Mtls {
        listen = " ssl";
        rest = format!(
            "ssl_protocols TLSv1.3; ssl_certificate {files}/{account}.pem; ssl_certificate_key {files}/{account}.key; \
             ssl_client_certificate {files}/roots.pem; ssl_verify_client on;"
        );
    }
    let servers: String = rows
        .iter()
        .map(|(at, to)| format!("server {{ listen {at}{listen} backlog=1024; {rest} proxy_pass {to}; }}\n"))
        .collect();
    let directory = world.path(&format!("nginx-{account}"));
    std::fs::create_dir_all(&directory).expect("directory");
    std::os::unix::fs::chown(&directory, Some(world::PROXY), Some(world::PROXY)).expect("owner");
    let at = directory.display();
    let config = world.write(
        &format!("nginx-{account}.conf"),
        &format!(
            "load_module {MODULE};\npid {at}/pid;\nerror_log {at}/errors crit;\nworker_processes 1;\ndaemon off;\n\
             master_process off;\nworker_rlimit_nofile 20000;\nevents {{ worker_connections 9000; }}\n\
             stream {{\n{servers}}}\n"
        ),
    );
    Start {
        words: [
            "/usr/sbin/nginx",
            "-e",
            &format!("{at}/errors"),
            "-c",
            &config.display().to_string(),
        ]
        .map(str::to_owned)
        .into(),
        env: Vec::new(),
        directory,
        uid: world::PROXY,
        cpu: place::PROXIES,
        log: world.path(&format!("nginx-{account}.log")),
    }
    .run(namespace, world.realtime)
}
