//! The dates of certificates: warnings of an own one, and errors that name them.

use std::io;
use std::time::{Duration, SystemTime};

use pikake_time::Utc;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

/// Warns of a certificate that has expired or is not valid yet. A certificate that cannot be parsed
/// is left to rustls, which refuses it.
pub(super) fn warn_of_dates(certificate: &CertificateDer<'_>, now: UnixTime) {
    let Ok(parsed) = ParsedCertificate::try_from(certificate) else { return };
    // The dates are checked before anything else, so no authority is needed.
    let authorities = RootCertStore::empty();
    let checked = verify_server_cert_signed_by_trust_anchor(&parsed, &authorities, &[], now, &[]);
    if let Some(fault) = checked.err().and_then(|error| fault(&error)) {
        let names = webpki::EndEntityCert::try_from(certificate)
            .map_or(String::new(), |it| it.valid_dns_names().collect::<Vec<_>>().join(", "));
        tracing::warn!(%names, "this program's certificate {fault}, so peers refuse it");
    }
}

/// The plain cause of a failed handshake, if it is a date of the peer's certificate.
pub(super) fn wrong_date(error: &io::Error) -> Option<String> {
    let fault = fault(error.get_ref()?.downcast_ref()?)?;
    Some(format!("the peer's certificate {fault}"))
}

/// The fault of a certificate, if it is one of the dates.
fn fault(error: &Error) -> Option<String> {
    let Error::InvalidCertificate(why) = error else { return None };
    let (fault, at) = match why {
        CertificateError::ExpiredContext { not_after, .. } => ("expired on", not_after),
        CertificateError::NotValidYetContext { not_before, .. } => {
            ("is not valid before", not_before)
        }
        _ => return None,
    };
    Some(format!("{fault} {}", Utc(SystemTime::UNIX_EPOCH + Duration::from_secs(at.as_secs()))))
}
