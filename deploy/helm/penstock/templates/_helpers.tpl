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
