#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# A certificate for the webhook, signed by an authority that is made for it alone, and written into the cluster: the
# secret tonnage-admit-tls, and the authority into the registrations. Run it again before it expires: the webhook takes
# new files while it runs. With cert-manager it is not needed.
set -euo pipefail

namespace=tonnage-system
days=${1:-365}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
name="tonnage-admit.$namespace.svc"
new=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
openssl req -x509 "${new[@]}" -keyout ca.key -out ca.crt -days "$days" -subj /CN=tonnage-admit-authority
openssl req "${new[@]}" -keyout tls.key -out tls.csr -subj "/CN=$name"
printf 'subjectAltName=DNS:%s,DNS:%s.cluster.local\n' "$name" "$name" >extensions
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile extensions -days "$days" -out tls.crt
place=/webhooks/0/clientConfig/caBundle
for configuration in mutatingwebhookconfiguration/tonnage-admit{,-pods}; do
    # One that is not registered is left out; an API server that does not answer ends this.
    registered=$(kubectl get "$configuration" --ignore-not-found -o name)
    [ -n "$registered" ] || continue
    # The authority of before stays trusted until every replica has the new certificate.
    kubectl get "$configuration" -o jsonpath='{.webhooks[0].clientConfig.caBundle}' | base64 -d >before.crt
    cp ca.crt both.crt
    openssl x509 -in before.crt >>both.crt 2>/dev/null || true
    bundle=$(base64 -w0 both.crt)
    kubectl patch "$configuration" --type=json -p "[{\"op\":\"add\",\"path\":\"$place\",\"value\":\"$bundle\"}]"
done
kubectl -n "$namespace" create secret tls tonnage-admit-tls --cert=tls.crt --key=tls.key --dry-run=client -o yaml |
    kubectl apply -f -
