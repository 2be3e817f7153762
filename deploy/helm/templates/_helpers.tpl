{{- define "project-api.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* The name of all objects. Kubernetes allows 63 characters; 10 are left for endings such as "-job-types". */}}
{{- define "project-api.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else if contains (include "project-api.name" .) .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "project-api.name" .) | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Selects the pods of this release. Kubernetes forbids a change of it, so it has no version. */}}
{{- define "project-api.selector" -}}
app.kubernetes.io/name: {{ include "project-api.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "project-api.labels" -}}
{{ include "project-api.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "project-api.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{/* Mistakes that a schema cannot name well. */}}
{{- define "project-api.check" -}}
{{- $issuer := or .Values.settings.ISSUER_URL (and .Values.settings.COGNITO_REGION .Values.settings.COGNITO_USER_POOL_ID) -}}
{{- if not (or $issuer .Values.env .Values.envFrom) -}}
{{- fail "\n\nsettings.ISSUER_URL is missing: give it, or COGNITO_REGION and COGNITO_USER_POOL_ID." -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.trustProxy) -}}
{{- fail "\n\ntrustProxy is missing: with ingress.enabled, give the addresses of the ingress controller's pods, or \"none\" if all clients may share one rate limit." -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.metricsPublic) -}}
{{- fail "\n\nserviceMonitor.enabled needs metricsPublic: true, because the Prometheus operator cannot send X-API-Key." -}}
{{- end -}}
{{- range list "HOST" "PORT" -}}
{{- if hasKey $.Values.settings . -}}{{- fail (printf "\n\nsettings.%s is set by the chart itself, always to the same value: remove it." .) -}}{{- end -}}
{{- end -}}
{{- range list "TRUST_PROXY" "METRICS_PUBLIC" "DATABASE_POOL_SIZE" "SHUTDOWN_TIMEOUT_MS" "JOB_TYPES_FILE" -}}
{{- if hasKey $.Values.settings . -}}{{- fail (printf "\n\nsettings.%s is set by the chart itself: values.yaml has a value of its own for it." .) -}}{{- end -}}
{{- end -}}
{{- range list "DATABASE_URL" "WEBHOOK_SECRET" "RUNTIME_API_KEY" "RUNTIME_IDENTITY_SECRET" "PUSH_PROJECT_ID" "PUSH_CLIENT_EMAIL" "PUSH_PRIVATE_KEY" -}}
{{- if hasKey $.Values.settings . -}}{{- fail (printf "\n\nsettings.%s is a secret: put it into the secret that secretName names, or give it with env or envFrom." .) -}}{{- end -}}
{{- end -}}
{{- if and .Values.jobTypes (not (hasKey (fromJson .Values.jobTypes) "types")) -}}
{{- fail "\n\njobTypes is not a file of job types: it must be JSON with the key \"types\"." -}}
{{- end -}}
{{- end }}

{{/* What pods of the service and of the migration have in common. */}}
{{- define "project-api.pod" -}}
automountServiceAccountToken: false
securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "project-api.volumes" -}}
{{- if .Values.secretName }}
- name: secrets
  secret: {secretName: {{ .Values.secretName | quote }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "project-api.mounts" -}}
{{- if .Values.secretName }}
- {name: secrets, mountPath: /secrets, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "project-api.container" -}}
image: {{ include "project-api.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{/* A setting as text. Helm reads every number of a file as a float: without int64, 1000000 would be written as 1e+06. */}}
{{- define "project-api.text" -}}
{{- $isWhole := false -}}
{{- if kindIs "float64" . -}}{{- $isWhole = eq (floor .) . -}}{{- end -}}
{{- if $isWhole -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end }}

{{/* The secrets that are always needed, and the variables of values.yaml. With withoutDatabase, all but the database's URL. */}}
{{- define "project-api.env" -}}
{{- if .root.Values.secretName }}
{{- if not .withoutDatabase }}
- {name: DATABASE_URL_FILE, value: /secrets/database-url}
{{- end }}
- {name: WEBHOOK_SECRET_FILE, value: /secrets/webhook-secret}
{{- end }}
{{- range .root.Values.env }}
{{- if not (and $.withoutDatabase (has .name (list "DATABASE_URL" "DATABASE_URL_FILE"))) }}
{{ toYaml (list .) }}
{{- end }}
{{- end }}
{{- end }}
