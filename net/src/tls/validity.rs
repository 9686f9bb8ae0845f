//! The dates of certificates: warnings of an own one, and errors that name them.

use std::io;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, Error};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

/// Warns of a certificate that has expired or is not valid yet. A certificate that cannot be parsed is
/// left to rustls, which refuses it.
pub(super) fn warn_of_dates(certificate: &CertificateDer<'_>, now: UnixTime) {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return };
    let (subject, validity) = (certificate.subject(), certificate.validity());
    let Ok(now) = i64::try_from(now.as_secs()) else { return };
    if validity.not_after.timestamp() < now {
        tracing::warn!(
            %subject, not_after = %validity.not_after,
            "this program's certificate has expired, so peers refuse it: renew it"
        );
    } else if now < validity.not_before.timestamp() {
        tracing::warn!(
            %subject, not_before = %validity.not_before,
            "this program's certificate is not valid yet, so peers refuse it: check the clock"
        );
    }
}

/// The plain cause of a failed handshake, if it is a date of the peer's certificate.
pub(super) fn wrong_date(error: &io::Error) -> Option<String> {
    let Some(Error::InvalidCertificate(why)) = error.get_ref()?.downcast_ref() else { return None };
    let date = |at: &UnixTime| {
        let at = i64::try_from(at.as_secs()).ok()?;
        ASN1Time::from_timestamp(at).ok().map(|date| date.to_string())
    };
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
