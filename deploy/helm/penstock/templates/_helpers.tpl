{{- define "penstock.labels" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "penstock.engine" -}}{{ .Release.Name }}-engine{{- end }}
{{- define "penstock.router" -}}{{ .Release.Name }}-router{{- end }}
{{- define "penstock.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}
{{- define "penstock.pod" -}}
runAsNonRoot: true
runAsUser: 10001
fsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end }}
{{- define "penstock.certificates" -}}/etc/penstock-tls{{- end }}
{{- /* A look at `path` of this container: by the kubelet, or from inside where a certificate must be shown. */ -}}
{{- define "penstock.look" -}}
{{- if .mutual -}}
exec:
  command:
    - python
    - -c
    - |
      import ssl, urllib.request
      tls = ssl._create_unverified_context()
      tls.load_cert_chain("/etc/penstock-tls/tls.crt", "/etc/penstock-tls/tls.key")
      urllib.request.urlopen("https://127.0.0.1:8000{{ .path }}", timeout=3, context=tls)
{{- else -}}
httpGet: { path: {{ .path }}, port: http{{ if .secret }}, scheme: HTTPS{{ end }} }
{{- end }}
{{- end }}
