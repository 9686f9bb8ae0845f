//! Certificates for servers that speak TLS, by openssl.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::place::Place;
use crate::Result;

/// Makes an authority with certificates of server and client, and an authority that signs none.
pub(super) fn certificates(place: &Place) -> Result {
    let folder = place.folder().join("tls");
    fs::create_dir(&folder)?;
    let request = |name: &str, more: &[&str]| {
        let mut openssl = Command::new("openssl");
        openssl.current_dir(&folder).args(["req", "-x509", "-newkey", "ec"]);
        openssl
            .args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(more);
        openssl.args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")]);
        place.run(&mut openssl)
    };
    for name in ["ca", "other-ca"] {
        request(name, &["-subj", &format!("/CN=pikake's tests: {name}")])?;
    }
    for name in ["server", "client"] {
        let subject = format!("/CN={name}");
        let more = [
            ["-CA", "ca.pem"],
            ["-CAkey", "ca.key"],
            ["-subj", &subject],
            ["-addext", "basicConstraints=critical,CA:FALSE"],
            ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        ];
        request(name, more.as_flattened())?;
    }
    // The server reads them as another user.
    fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
    for file in fs::read_dir(&folder)? {
        fs::set_permissions(file?.path(), Permissions::from_mode(0o644))?;
    }
    Ok(())
}
