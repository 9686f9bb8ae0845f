//! The dates of certificates: warnings of an own one, and errors that name them.

use std::io;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, Error};
use x509_cert::Certificate;
use x509_cert::der::{DateTime, Decode};

/// Warns of a certificate that has expired or is not valid yet. A certificate that cannot be parsed
/// is left to rustls, which refuses it.
pub(super) fn warn_of_dates(certificate: &CertificateDer<'_>, now: UnixTime) {
    let Ok(certificate) = Certificate::from_der(certificate) else { return };
    let (subject, validity) =
        (certificate.tbs_certificate().subject(), certificate.tbs_certificate().validity());
    let now = Duration::from_secs(now.as_secs());
    if validity.not_after.to_unix_duration() < now {
        tracing::warn!(
            %subject, not_after = %validity.not_after,
            "this program's certificate has expired, so peers refuse it: renew it"
        );
    } else if now < validity.not_before.to_unix_duration() {
        tracing::warn!(
            %subject, not_before = %validity.not_before,
            "this program's certificate is not valid yet, so peers refuse it: check the clock"
        );
    }
}

/// The plain cause of a failed handshake, if it is a date of the peer's certificate.
pub(super) fn wrong_date(error: &io::Error) -> Option<String> {
    let Some(Error::InvalidCertificate(why)) = error.get_ref()?.downcast_ref() else { return None };
    let date = |at: &UnixTime| DateTime::from_unix_duration(Duration::from_secs(at.as_secs())).ok();
    match why {
        CertificateError::ExpiredContext { not_after, .. } => {
            Some(format!("the peer's certificate expired on {}", date(not_after)?))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            Some(format!("the peer's certificate is not valid before {}", date(not_before)?))
        }
        _ => None,
    }
}
